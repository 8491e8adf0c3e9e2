"""What a device learned, across updates of what it learned on.

keeping    where it is on disk, and for how many versions
carrying   from one bundle to the next: by name and shape, judged by the device's own kept examples
language   the same for adapters of language models, which the new base learns from the old one's answers
"""
