"""Tables that one program writes for people: the results of a study."""
