"""What a comparison holds, and the sentence that it comes to."""
