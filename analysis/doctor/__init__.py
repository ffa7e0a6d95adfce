"""Find what is wrong with a run. Each finding has its evidence and a cure."""
