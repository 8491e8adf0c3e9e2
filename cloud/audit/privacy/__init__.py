"""What a model, a federated round or a language model reveals of the examples it was trained on."""
