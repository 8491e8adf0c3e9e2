"""The file that `msedge train --template` prints."""

from __future__ import annotations

__all__ = ["TEMPLATE"]

TEMPLATE = """\
# A training run: msedge train run.toml     (msedge train run.toml --set train.rate=0.01 changes a key)
# Lines that begin with `#` show defaults. Paths are relative to this file.

[model]                            # one of zoo, onnx, function
zoo = "resnet8"                    # or mlp, ds_cnn, window_cnn, transformer: builders of cloud.zoo
# onnx = ""                        # a file
# function = ""                    # "module:function": returns an onnx_ir.Model, a Flax module or a cloud.train task
# trainable = []                   # glob patterns of initialisers; []: all that can be trained

[model.options]                    # keyword arguments of the builder or function
input_shape = [1, 8, 8]

[data]                             # one of builtin, npz, text, folder, records, function
builtin = "digits"                 # scikit-learn's handwritten digits
# npz = ""                         # a file of arrays, example first
# text = ""                        # a file, byte by byte, in windows; the next byte is the label
# folder = ""                      # of images, one folder per class; read during training, like records
# records = ""                     # a file written by cloud.data.write_records
# function = ""                    # "module:function": returns (inputs, labels), a pipeline of cloud.data, or two of
                                   # these, for training and validation; its keyword arguments in [data.options]
# inputs = {}                      # the file's array for each input of the model: { x = "x_train" }
# labels = "labels"
# validation_inputs = {}           # the same for validation, if the file has separate arrays for it
# validation_labels = ""
# validation = 0.1                 # otherwise: the share of examples held out
# scale = 1.0                      # whole numbers become floats as value * scale + offset
# offset = 0.0
# length = 128                     # of the windows that a text is cut into
# limit = 0                        # use at most this many examples, chosen by the seed; 0: all

[train]
epochs = 12                        # 0: as many as `steps` need
# steps = 0                        # the run ends after exactly this many; 0: after its epochs
# batch = 64
# optimizer = "adam"               # or adamw, sgd, momentum, lion, muon, thor
# rate = 0.001                     # the learning rate at its highest
# schedule = "constant"            # or cosine, linear: both fall to 0
# warmup = 0.0                     # the share of steps in which the rate rises from 0
# momentum = 0.9
# weight_decay = 0.0
# loss = "softmax_cross_entropy"   # or mean_squared_error, "module:function"
# smoothing = 0.0                  # share of each label that is spread evenly over all classes
# metrics = ["accuracy"]
# augment = ""                     # "module:function": changes a batch's inputs in training
# seed = 0
# precision = "float32"            # or bfloat16, float16: what the model computes in
# accumulate = 1                   # microbatches per batch
# clip = 0.0                       # gradients' largest norm; 0: no clipping
# gradient_norm = false            # record it every step (clip always does)
# freeze = []                      # glob patterns of parameters that are not trained
# recompute = 0.0                  # share of the forward pass recomputed instead of stored
# average = 0.0                    # decay of the moving average of the weights; 0: no average
# last = "pad"                     # or drop: what to do with an incomplete last batch

[parallel]
# mode = "none"                    # or data: every device computes part of each batch; auto: as the planner decides
# plan = ""                        # for auto: a file that msedge plan -o wrote
# topology = ""                    # for auto and msedge plan: a preset or a TOML file; "": the devices present
# memory = ""                      # likewise: memory of one device, such as "16GiB"
# compiled = 0                     # for auto: compile this many of the best plans and use the best program

[checkpoint]
# folder = ""                      # --resume continues from its newest checkpoint; "": no checkpoints
# every = 0                        # steps; 0: at the end of each epoch
# keep = 3
# best = ""                        # "loss" or a metric of validation: the best checkpoint is kept too

[export]
# onnx = ""                        # the trained model
# bundle = ""                      # the trained model as a bundle for devices
# quantize = "none"                # the bundle: fp16, dynamic, int8, int16x8, w8, w4

[track]
# store = ""                       # where runs are recorded; "": MSEDGE_RUNS, or runs.sqlite in the working folder
# name = ""
# keep = true                      # false: do not record the run
"""
