"""Reports as documents, and the forms that show them."""
