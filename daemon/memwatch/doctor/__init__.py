"""What is seen of a machine, what is not, why, and what would change that."""
