"""`liftlog export` for spark-submit, which wants a file; `__main__` is it.

    spark-submit [...] "$(python -m liftlog.cli.export_job --path)" STREAM --to DIR [...]

It lies in a folder of its own because Python looks for modules beside a script first: beside the
commands it would find `compaction` and `acl` there.
"""
