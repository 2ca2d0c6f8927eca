"""What makes parts of this repository from its code. Not installed.

pages/      the reference pages that are made from code (`make pages`)
"""
