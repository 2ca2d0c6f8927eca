"""`liftlog cluster`.

cluster        init, status and others
cluster_adopt  takes restored streams into a cluster
cluster_moves  move, drain, undrain, forget
"""
