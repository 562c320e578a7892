"""Every call there is, to be cancelled at each point where it waits.

``world`` is what the calls find, ``writes``, ``reads`` and ``readers`` are the calls,
each with what has to hold after it was cancelled, and ``calls`` lists them by method.
"""
