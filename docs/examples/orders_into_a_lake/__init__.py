"""Orders from NATS into a lake, queried with Spark SQL: the worked example. See README.md.

scenario   what happens, step by step
queries    the SQL, its answers against the books, the picture
shop       three weeks of orders, and the books: pure
"""
