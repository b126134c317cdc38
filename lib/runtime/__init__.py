"""What pipeline, schedules and streams stand on; it knows none of them.

microbatch, partitions          what is cut: a mini-batch into micro-batches, a model into partitions
dependency, no_gradient         edges of backward that carry no data; what is made where the loss has no gradient
device                          a CPU and any accelerator under one set of names: streams, events, memory
thread_state, queues            what is local to a thread, and how one waits
random_state, compiled_draws    random numbers of (micro-batch, partition); those of compiled layers
sharing, regions                who else needs a tensor that crosses a cut; whether two tensors have bytes in common
recording                       spans on devices, and of a pipeline's micro-batches
"""
