"""TFDS builders of the training runs' data sets; none needs TensorFlow or the network."""
