"""Models whose parameters may be sharded over processes, behind one interface: `fspo.distributed.layout.layout_of`.

No other package uses FSDP2 or its tensors directly. The layout says how the parameters are spread: in `plain` each
process holds all of them, in `fsdp2` a part of each. `tensors` gathers single tensors and divides them into the parts
of the processes."""
