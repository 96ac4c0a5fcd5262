"""What memory holds of a trace of any length: columns, numbers for ids, and the objects that live."""
