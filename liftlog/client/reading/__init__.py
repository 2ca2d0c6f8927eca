"""Reads a stream: which fetch to send next, checked batches, offsets to store.

read_options  the options of a read
read_ahead    one continuous read, without I/O
batches       turns an answer into checked batches
base_reader   position and state of the readers of both clients
consuming     the progress of a consumer, and when to store it
"""
