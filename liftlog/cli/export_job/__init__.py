"""`liftlog export` for spark-submit, which runs a file; that file is `__main__.py`.

    spark-submit [...] "$(python -m liftlog.cli.export_job --path)" STREAM --to DIR [...]

The file has a folder of its own, because Python first looks for modules in the folder of the
script. In the folder of the commands it would find the wrong `acl`.
"""
