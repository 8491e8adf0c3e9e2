"""What a bundle learns on a device: state and its checkpoints, and batches of rows with weights of their own."""
