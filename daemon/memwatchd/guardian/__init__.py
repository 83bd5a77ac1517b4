"""memwatch-guardian: a program that ends a runaway process before a machine stops responding."""
