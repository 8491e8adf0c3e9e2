"""The device side: answers to messages, the learner, personal state and what the owner of a device demands."""
