"""The file that `msedge train --template` prints."""

from __future__ import annotations

__all__ = ["TEMPLATE"]

TEMPLATE = """\
# A training run: msedge train run.toml     (msedge train run.toml --set train.rate=0.01 changes a key)
# Lines behind `#` show defaults. Paths are relative to this file.

[model]                            # one of zoo, onnx, function
zoo = "resnet8"                    # or mlp, ds_cnn, window_cnn, transformer: builders of cloud.zoo
# onnx = ""                        # a file
# function = ""                    # "module:function": gives an onnx_ir.Model, a Flax module or a cloud.train task
# trainable = []                   # glob patterns of initialisers; none: all that can be trained

[model.options]                    # keyword arguments of the builder or function
input_shape = [1, 8, 8]

[data]                             # one of builtin, npz, text, folder, records, function
builtin = "digits"                 # scikit-learn's handwritten digits
# npz = ""                         # a file of arrays, example first
# text = ""                        # a file, byte by byte, in windows; the next byte is the label
# folder = ""                      # of images, in a folder a class; read while training goes on, as records are
# records = ""                     # a file that cloud.data.write_records made
# function = ""                    # "module:function": gives (inputs, labels), a pipeline of cloud.data, or a pair of
                                   # such for training and validation; its keyword arguments in [data.options]
# inputs = {}                      # the file's array for each input of the model: { x = "x_train" }
# labels = "labels"
# validation_inputs = {}           # the same for validation, where the file has it apart
# validation_labels = ""
# validation = 0.1                 # else: the share of examples held out
# scale = 1.0                      # whole numbers become floats as value * scale + offset
# offset = 0.0
# length = 128                     # of a text's windows
# limit = 0                        # the most examples, drawn by the seed; 0: all

[train]
epochs = 12                        # 0: as many as steps take
# steps = 0                        # the run ends after exactly so many; 0: with its epochs
# batch = 64
# optimizer = "adam"               # or adamw, sgd, momentum, lion, muon, thor
# rate = 0.001                     # the learning rate at its highest
# schedule = "constant"            # or cosine, linear: down to 0
# warmup = 0.0                     # the share of steps in which the rate rises
# momentum = 0.9
# weight_decay = 0.0
# loss = "softmax_cross_entropy"   # or mean_squared_error, "module:function"
# smoothing = 0.0                  # of labels
# metrics = ["accuracy"]
# augment = ""                     # "module:function": changes a batch's inputs in training
# seed = 0
# precision = "float32"            # or bfloat16, float16: what the model computes in
# accumulate = 1                   # microbatches a batch
# clip = 0.0                       # gradients' largest norm; 0: any
# gradient_norm = false            # recorded every step (with clip it is anyway)
# freeze = []                      # glob patterns of parameters that stay
# recompute = 0.0                  # share of the forward pass computed again rather than kept
# average = 0.0                    # share that a moving mean of weights keeps every step; 0: none
# last = "pad"                     # or drop: the last batch where rows are missing

[parallel]
# mode = "none"                    # or data: every device computes part of each batch; auto: as the planner decides
# plan = ""                        # of auto: a file that msedge plan -o wrote
# topology = ""                    # of auto and msedge plan: a preset or a TOML file, else what is here
# memory = ""                      # the same: of one device: "16GiB"
# compiled = 0                     # of auto: so many of the best plans are compiled, and the best program is taken

[checkpoint]
# folder = ""                      # msedge train --resume goes on from the newest there; none: nothing is kept
# every = 0                        # steps; 0: at the end of each epoch
# keep = 3
# best = ""                        # "loss" or a metric of validation: the best one stays too

[export]
# onnx = ""                        # the trained model
# bundle = ""                      # the same for devices
# quantize = "none"                # the bundle: fp16, dynamic, int8, int16x8, w8, w4

[track]
# store = ""                       # of runs; else MSEDGE_RUNS, or runs.sqlite where you are
# name = ""
# keep = true                      # false: no record
"""
