"""Many clients under faults, a record of all they were told, and a judge of it.

``client`` runs in processes of its own and writes down every call and answer;
``nemesis`` breaks things meanwhile; ``run`` has both at it for a while; ``stored``
reads what MongoDB holds in the end; and the ``check`` modules compare the two.
"""
