"""The compiled programs of a run on devices, and the arrays that they exchange.

``gradients`` are functions of a worker. ``commits`` is what every transport shares at the central variable. ``host`` joins the
two for the devices of one host.
"""
