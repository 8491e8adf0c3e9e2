"""The file that `msedge train --template` prints."""

from __future__ import annotations

__all__ = ["TEMPLATE"]

TEMPLATE = """\
# A training run: msedge train run.toml     (msedge train run.toml --set train.rate=0.01 changes a key)
# Lines that begin with `#` show defaults. Paths are relative to this file.

[model]                            # one of zoo, onnx, function
zoo = "resnet8"                    # or another builder of cloud.zoo: docs/zoo.md lists them
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
# labels = "labels"                # or several, by head: { digit = "y", side = "z" }
# weights = ""                     # the array of examples' weights; "": all 1
# validation_inputs = {}           # the same for validation, if the file has separate arrays for it
# validation_labels = ""
# validation = 0.1                 # otherwise: the share of examples held out
# scale = 1.0                      # whole numbers become floats as value * scale + offset
# offset = 0.0
# length = 128                     # of the windows that a text is cut into
# limit = 0                        # use at most this many examples, chosen by the seed; 0: all
# augment = []                     # [[data.augment]]: random changes of training data, one after the other. A policy:
                                   # kind = "image" (spectrum, series), axes = "chw", operations = [], choose = 2,
                                   # magnitude = 9.0 of 30, uniform = false, wide = false, chance = 1.0, fill = 0.0,
                                   # range = [0.0, 1.0]; or one operation = "rotate" with amount = 15.0; or
                                   # blend = "mixup" (cutmix, either) with classes = 10, alpha = 1.0, head; input

[train]
epochs = 12                        # 0: as many as `steps` need
# steps = 0                        # the run ends after exactly this many; 0: after its epochs
# batch = 64
# optimizer = "adam"               # or adamw, sgd, momentum, lion, muon, thor
# rate = 0.001                     # the learning rate at its highest
# schedule = "constant"            # or linear, cosine, polynomial, exponential, step, cosine_restarts, one_cycle,
                                   # inverse_sqrt; the section [schedule] says more
# warmup = 0.0                     # the share of steps in which the rate rises from 0
# rises = "linear"                 # or cosine, quadratic
# momentum = 0.9
# weight_decay = 0.0
# decay = "matrices"               # what decays: arrays of rank 2 and up (no biases, no norms), or all
# groups = []                      # [[train.groups]]: match = ["head.*"], rate = 10.0 (times the rate), weight_decay,
                                   # optimizer; a parameter belongs to the first that matches
# layer_decay = 1.0                # the rate is multiplied by this once for every layer behind
# layers = []                      # glob patterns of layers for that, from the front; []: by the names of parameters
# loss = "softmax_cross_entropy"   # or mean_squared_error, "module:function"
# smoothing = 0.0                  # share of each label that is spread evenly over all classes
# class_weights = []               # one per class, by which its loss is multiplied, or "balanced"
# focus = 0.0                      # gamma of the focal loss
# heads = {}                       # [train.heads.NAME]: loss, smoothing, class_weights, focus, weight = 1.0, metrics,
                                   # output and labels (the head's name by default); all losses are added up
# metrics = ["accuracy"]           # also over the whole set: f1_macro, roc_auc, confusion, perplexity, r2, coco_map …
# augment = ""                     # "module:function": changes a batch's inputs in training
# seed = 0
# precision = "float32"            # or bfloat16, float16: what the model computes in
# accumulate = 1                   # microbatches per batch
# clip = 0.0                       # gradients' largest norm; 0: no clipping
# gradient_norm = false            # record it every step (clip always does)
# freeze = []                      # glob patterns of parameters that are not trained
# recompute = 0.0                  # share of the forward pass recomputed instead of stored
# average = 0.0                    # decay of the moving average of the weights; 0: no average
# swa = 0.0                        # use the mean of the weights after this share of the steps; 0: no
# swa_every = 0                    # steps between the weights it is the mean of; 0: an epoch
# swa_batches = 0                  # batches for BatchNormalization's statistics with that mean; 0: an epoch
# evaluate_steps = 0               # validate after this many steps; 0: after each epoch
# evaluate_share = 0.0             # validate also after this share of each epoch
# last = "pad"                     # or drop: what to do with an incomplete last batch

[schedule]                         # each schedule takes some of these; rates as shares of train.rate
# end = 0.0                        # the last rate
# power = 2.0                      # polynomial
# factor = 0.1                     # step: multiplies the rate at each of `at`, shares of the steps after the warm-up
# at = [0.5, 0.75]
# cycles = 4                       # cosine_restarts, each cycle `stretch` times as long as the one before
# stretch = 1.0
# rise = 0.3                       # one_cycle: the share of steps in which the rate rises, from `start`
# start = 0.04
# floor = 0.0                      # where the warm-up begins

[stopping]                         # early, by validation
# patience = 0                     # evaluations without a better value; 0: the run does not stop early
# min_delta = 0.0                  # better by more than this
# metric = "loss"                  # or a metric
# mode = ""                        # min, max; "": what the metric's name says
# restore = true                   # the weights are those of the best evaluation in the end

[plateau]                          # a lower rate, by validation
# patience = 0                     # evaluations without a better value; 0: the rate is never lowered
# factor = 0.5
# min_delta = 0.0
# metric = "loss"
# mode = ""
# cooldown = 0                     # evaluations that are not counted afterwards
# least = 0.0                      # the lowest rate, as a share of the schedule's

[freezing]                         # layers that thaw or freeze as the run goes on
# kind = ""                        # gradual: from the back, they thaw; progressive: from the front, they freeze
# first = 1                        # gradual: layers that are trained at first
# every = 1                        # epochs between two layers, or two decisions
# share = 0.33                     # progressive: the most of the active layers that are frozen at once
# batches = 4                      # progressive: batches whose gradient decides
# layers = []                      # glob patterns of layers, from the front; []: by the names of parameters
# [train.lora]                     # low-rank adapters instead of the weights
# rank = 8
# alpha = 0.0                      # their product is multiplied by alpha / rank; 0: by 1
# targets = ["*"]                  # globs of parameters of rank 2 and up
# also = []                        # globs of parameters that are trained as a whole beside them

# [train.distill]                  # a teacher beside the labels
# onnx = "teacher.onnx"            # or function = "module:function", with its keyword arguments in `options`
# temperature = 2.0
# weight = 0.5                     # the teacher's part of the loss
# hints = {}                       # values of the graph: { "student's" = "teacher's" }
# hint_weight = 1.0

# [train.prune]                    # weights, or whole channels, that become zero
# sparsity = 0.8
# begin = 0                        # step
# end = 0                          # step; 0: three quarters of the run
# every = 50                       # steps
# targets = ["*"]
# structured = false               # true: whole channels, which the exported graph does not have

# [train.adversarial]              # every batch is moved to where its loss is high before it is learned
# epsilon = 0.1                    # how far, in units of the inputs
# steps = 7                        # further passes that a step costs
# step = 0.0                       # length of each; 0: 2.5 * epsilon / steps
# norm = "Linf"                    # or L2
# low = 0.0                        # the range of inputs
# high = 1.0
# trades = 0.0                     # above 0: learn the batch as it is, and this times KL from the moved one
# input = ""                       # which input; "": the only one of floats

[parallel]
# mode = "none"                    # or data: every device computes part of each batch; auto: as the planner decides
# plan = ""                        # for auto: a file that msedge plan -o wrote
# compress = ""                    # how gradients cross slow links: int8, powersgd, auto (int8 if it saves time)
# topology = ""                    # for auto, compress and msedge plan: a preset or a TOML file; "": this machine's
# memory = ""                      # likewise: memory of one device, such as "16GiB"
# compiled = 4                     # for auto: compile this many of the best plans; without it, what a minute allows

[checkpoint]
# folder = ""                      # --resume continues from its newest checkpoint; "": no checkpoints
# every = 0                        # steps; 0: at the end of each epoch
# keep = 3
# best = ""                        # "loss" or a metric of validation: the best checkpoint is kept too

[export]
# onnx = ""                        # the trained model
# bundle = ""                      # the trained model as a bundle for devices
# adapter = ""                     # with [train.lora]: the adapters alone, for a bundle with the same ones
# quantize = "none"                # the bundle: fp16, dynamic, int8, int16x8, w8, w4

[track]
# store = ""                       # where runs are recorded; "": MSEDGE_RUNS, or runs.sqlite in the working folder
# name = ""
# keep = true                      # false: do not record the run
# mlflow = ""                      # MLflow gets the run too: "sqlite:///mlflow.db", "http://127.0.0.1:5000"
# wandb = ""                       # so does this project of Weights & Biases; WANDB_MODE=offline needs no server
# experiment = ""                  # MLflow's experiment; "": msedge
# profile = 0                      # steps that JAX's profiler watches, once, for the page of the run

# [tune]                           # for msedge tune, which tries other values of some keys; msedge train ignores it
# space = {}                       # by key: { "train.rate" = { low = 1e-4, high = 0.1, log = true } }; integer = true:
                                   # whole numbers; "train.batch" = [16, 32]: one of these values
# metric = "loss"                  # or a metric of validation
# mode = ""                        # min or max; "": as is known of the metric
# method = "bayes"                 # by the results so far; random
# trials = 20
# evaluations = 0                  # no further trial begins after this many of all trials together; 0: no limit
# seconds = 0.0                    # trials are interrupted after this time; 0: no limit
# processes = 1                    # trials at a time, each on its share of the cores
# halving = 3                      # at each rung the best 1 / halving go on; 0: all trials are run to the end
# least = 1                        # evaluations at the first rung, halving times as many at each further one
# seed = 0
# folder = "study"                 # what is known of the trials, from which --resume continues
"""
