"""`liftlog demo-spark`: orders from NATS into a lake, queried with Spark SQL. The worked example.

command    the click command            shop      three weeks of orders, and its books: pure
scenario   what happens, step by step   queries   the SQL
chart      the picture                  checking  the lake against the shop's books: pure
"""
