"""Tools that make parts of this repository from its code. They are not installed.

pages/           the reference pages that are made from code (`make pages`)
spark_jar        the Spark connector, compiled from spark-connector/ (`make jar`)
run_tests        all tests (`make test`)
compiled_tests   pytest in several processes, which find the bytecode of all tests
tidy             figures of the source (`make tidy`)
blocking_client  the blocking client and its tests, made from those of asyncio (`make blocking`)
"""
