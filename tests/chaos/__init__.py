"""Fault campaigns: clients at work while MongoDB fails, and a check of their answers.

``client`` runs in processes of its own and records every call and answer; ``nemesis``
injects faults meanwhile; ``run`` does both for a while; ``stored`` reads what MongoDB
holds in the end; and the ``check`` modules compare the two. ``python -m chaos
--minutes N``, with this folder's parent on PYTHONPATH, is one campaign.
"""
