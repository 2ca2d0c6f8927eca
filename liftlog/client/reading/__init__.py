"""Reads a stream: chooses the next fetch, checks batches, and decides which offsets to store.

read_options  the options of a read
read_ahead    one continuous read, without I/O: decides what the reader gets and when to send a
              fetch
next_fetch    the next fetch of a read: its position and its size
open_answers  keeps the requested answers of a read until their last batch is returned
reporting     reports damage and resets to the application
batches       turns an answer into checked batches
base_reader   position and state of the readers of both clients
consuming     progress of a consumer, and when to store checkpoints
"""
