"""Model servers: how they are recognized, what each engine reports, and the record that it makes.

Everything but `server`, which sends the requests, is pure.
"""
