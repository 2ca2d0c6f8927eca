"""What makes parts of this repository from its code. Not installed.

pages/           the reference pages that are made from code (`make pages`)
spark_jar        the Spark connector, compiled from spark-connector/ (`make jar`)
run_tests        all tests (`make test`)
blocking_client  the blocking client and its tests, made from those of asyncio (`make blocking`)
"""
