"""Reads a stream: which fetch to send next, checked batches, offsets to store.

read_options  the options of a read
read_ahead    one continuous read, without I/O: what the reader gets, and when to send a fetch
next_fetch    the next fetch of a read: its place, and how much it requests
open_answers  the requested answers of a read, until their last batch is returned
reporting     reports damage and resets to the application
batches       turns an answer into checked batches
base_reader   position and state of the readers of both clients
consuming     progress of a consumer, and when to store checkpoints
"""
