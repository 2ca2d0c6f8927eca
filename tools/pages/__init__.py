"""The reference pages that are made from the code they describe. `make pages` writes them.

commands    docs/reference/cli.md            client      docs/reference/client-api.md
errors      docs/reference/errors.md         settings    docs/reference/settings.md
metrics     docs/reference/metrics.md

Each module has a `render` that returns its page. A test fails when a page is out of date.
"""
