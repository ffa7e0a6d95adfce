"""Models whose parameters may be sharded over processes, behind one interface: `fspo.distributed.layout.layout_of`.

No other package uses FSDP2 or its tensors directly. The layout is `plain` if each process holds all parameters and
`fsdp2` if it holds shards. `tensors` gathers single tensors and cuts them into the parts of the processes.
"""
