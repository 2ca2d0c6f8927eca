"""Answers requests of the pull API, the HTTP API, the web page and JetStream's API.

rights          the operation of the ACL that each request needs, and the node that answers it
handlers        the code that answers each request
consumer_handlers
                the code that answers requests about consumers with acks
erasure_handlers
                the code that answers requests about erased records
group_handlers  the code that answers requests about consumer groups
"""
