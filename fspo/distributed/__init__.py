"""Parameters that are spread over processes, asked through one interface: `fspo.distributed.layout.layout_of`.

No other room names FSDP2 or its tensors. A process that holds the whole model has the layout `plain`, one that holds
its shards `fsdp2`; `tensors` turns single tensors whole and into this process's part.
"""
