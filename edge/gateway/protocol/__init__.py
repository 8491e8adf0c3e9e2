"""Reading and writing messages of the Open Inference Protocol, as pure functions."""
