"""One case on several devices: a worker process for each rank, which all make the same calls in the same order.

group.py joins the processes; split_inputs.py gives each its part of the sequence and gathers results; rank_cell.py has
the steps of a cell. Common decisions (the number of samples, when to stop, whether a result is right) are made over
gloo on the host, so that no rank waits for a collective that another does not call.
"""
