"""The views; each returns a `Shown`, from which HTML and JSON are made."""
