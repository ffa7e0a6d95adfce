"""Follow the logs of runs during training, and show them on a page that this machine serves (``fspo watch``)."""
