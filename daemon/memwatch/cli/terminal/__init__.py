"""The terminal interface of `memwatch top`: pure views and key handling, and a thin terminal driver."""
