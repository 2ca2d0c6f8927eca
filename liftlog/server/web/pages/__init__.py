"""The views. Each returns a `Shown`, from which HTML and JSON are rendered.

overview, charts, access   the daemon; its last hours; principals and their rights
cluster                    nodes, and replicas of streams
topology                   subjects, the streams that record them, and their readers
stream, editing            one stream; the forms that create and change one
records, record, versions  records of a stream; one record; all records of a key
consumers, groups          checkpoints and lag; consumer groups
workers                    consumers with acks
publishing                 the form that publishes a message
erasing                    the form that erases records; the list of erasures
"""
