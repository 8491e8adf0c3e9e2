"""The device side: answers to messages, the learner, personal state and the owner's demands."""
