"""The claims about training: a catalogue of atoms and headlines, their numbers, and their verdicts."""
