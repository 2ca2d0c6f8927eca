"""One module per page; each view returns a `Shown`, of which HTML and JSON are made."""
