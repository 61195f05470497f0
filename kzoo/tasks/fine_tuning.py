"""What of a task trains: LoRA and frozen weights, chosen by their paths."""

import difflib
import itertools
import json
import math
import re
import warnings
from fnmatch import fnmatchcase

import keras

from kzoo.arguments import check_count, is_number
from kzoo.checkpoints.files import open_file
from kzoo.checkpoints.safetensors_file import read_metadata
from kzoo.layers.lora import LoRA, has_lora
from kzoo.models.turns import training
from kzoo.tasks.weights_file import check_shapes, read_into, write_safetensors

_METADATA = "kzoo_lora"


class FineTunes(keras.Model):
    """Mixin of tasks: LoRA, and weights that do not train.

    A pattern is a glob over paths (`named_variables`), whose `*` also stands for
    slashes, and takes what is below a path, too: `"encoder"`, `"*/layer_[0-3]"`,
    `"*attention/query"`. Several may be given as a list. All verbs are for between two
    calls of `fit`. A task that was compiled goes on with an optimizer of the same
    config and without state, because that of another one has other variables.
    """

    trains_with_lora = ("head",)  # new in most tasks: adapters alone would not do

    def freeze(self, *patterns):
        """Stops training of weights; all of them without a pattern.

        Args:
            *patterns: of their paths.

        Returns:
            The paths of the weights that were chosen.

        Raises:
            ValueError: a pattern chooses nothing; nothing is changed.

        Example:
            >>> classifier.freeze("encoder/*embedding", "encoder/layer_[0-3]")
        """
        chosen = matching(patterns or ["*"], self._may_train(), "weight")
        self._train_only(set(self._trained()) - set(chosen))
        return chosen

    def unfreeze(self, *patterns):
        """Trains weights again; all of them without a pattern.

        But never a matrix that has adapters; `merge_lora` gives it back.

        Args:
            *patterns: of their paths.

        Returns:
            The paths of the weights that were chosen.

        Raises:
            ValueError: a pattern chooses nothing; nothing is changed.
        """
        chosen = matching(patterns or ["*"], self._may_train(), "weight")
        self._train_only({*self._trained(), *chosen})
        return chosen

    def enable_lora(
        self,
        rank,
        pattern=("*attention/query", "*attention/value"),
        alpha=None,
        also_train=None,
    ):
        """Adds trainable low-rank adapters to linear layers and embeddings.

        Paper: Hu et al., 2021, https://arxiv.org/abs/2106.09685. The matrix W (D, E) of
        a layer counts as W + alpha / rank * A B, with A (D, rank) random and B
        (rank, E) zero at first, and only these train. The first call freezes all other
        weights; further ones add layers and leave alone what trains besides.

        Args:
            rank: int, of the adapters.
            pattern: of the paths of layers; by default the paper's choice. `"*"` is all
                that can have adapters.
            alpha: by default `rank`.
            also_train: pattern of weights that train beside the adapters; by default
                the head, but in a language model, whose head is no new one. `()` for
                none.

        Returns:
            The paths of the layers.

        Raises:
            ValueError: the rank is no positive int, alpha no finite number, a pattern
                chooses nothing, or a layer has adapters already; nothing is changed.

        Example:
            >>> classifier.enable_lora(8, ["*attention/*", "*feed_forward/*"])
            >>> classifier.compile()
            >>> classifier.fit(texts, labels)
            >>> classifier.save_lora("adapters.safetensors")
        """
        _check_lora(rank, alpha)
        alpha = None if alpha is None else float(alpha)
        layers, named = self._lora_layers(), self._may_train()
        chosen = matching(pattern, layers, "layer that can have LoRA")
        twice = [path for path in chosen if layers[path].lora_enabled]
        if twice:
            raise ValueError(
                f"{self.name} has LoRA already at {twice}. Choose other layers, or "
                "call merge_lora() first."
            )
        if also_train is None:  # some heads have no weights, and match nothing
            own = self.trains_with_lora
            kept = [path for path in named if any(_chooses(p, path) for p in own)]
        else:
            kept = matching(also_train, named, "weight")
        if any(map(has_lora, layers.values())):
            kept += self._trained()
        self._add_adapters({path: (int(rank), alpha) for path in chosen}, kept)
        return chosen

    def merge_lora(self):
        """Makes each matrix the sum of itself and its adapters, and removes these.

        All weights train again, as in a task without LoRA.

        Returns:
            The paths of the layers.

        Raises:
            ValueError: there is no LoRA.
        """
        layers = self._enabled_lora()
        with training(self):
            for layer in layers.values():
                layer.merge_lora()
        self._train_only(self.named_variables())
        return list(layers)

    def save_lora(self, path):
        """Writes the adapters, and what trains beside them, under their paths.

        Args:
            path: a safetensors file; its metadata has rank and alpha of each layer.

        Raises:
            ValueError: there is no LoRA.
        """
        described = json.dumps(_describe(self._enabled_lora()))
        named = self.named_variables()
        written = {n: v for n, v in named.items() if v.trainable or _is_adapter(n)}
        write_safetensors(path, written, {_METADATA: described})

    def load_lora(self, path):
        """Reads what `save_lora` wrote, over the same base weights.

        A task without LoRA gets the file's adapters, and then trains what the file has.
        One with LoRA needs to have it at the same layers, with the same ranks.

        Args:
            path: the file.

        Raises:
            FileNotFoundError: no such file.
            ValueError: the file is damaged or of another model; all that does not fit
                is named, and nothing is changed.
        """
        with open_file(path) as file:
            try:
                described = json.loads(read_metadata(path)[_METADATA])
                adapters = {
                    layer: (int(options["rank"]), float(options["alpha"]))
                    for layer, options in described.items()
                }
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ValueError(
                    f"{path} holds no adapters of kzoo: its metadata lack {_METADATA}. "
                    "save_lora() writes such files; load_safetensors() reads all "
                    "weights."
                ) from error
            named, layers = self.named_variables(), self._lora_layers()
            names = set(file)
            expected = {
                name: variable.shape
                for name, variable in named.items()
                if name in names or _is_adapter(name)
            }
            for layer, (rank, _) in adapters.items():
                if layer not in layers:
                    expected[layer] = ()
                elif not layers[layer].lora_enabled:
                    expected |= _shapes(layer, layers[layer], rank)
            check_shapes(file, expected, path, self.name)
            new = {p: o for p, o in adapters.items() if not layers[p].lora_enabled}
            if new:
                self._add_adapters(new, names & set(named))
            for layer, (_, alpha) in adapters.items():
                layers[layer].lora_alpha = alpha
            named = self.named_variables()
            for name in names:
                read_into(named[name], file, name)
        if not new:  # else it has been done
            self._start_training_anew()

    def load_weights(self, filepath, skip_mismatch=False, **kwargs):
        """Keras's; functions that were compiled go on with the file's alpha, too."""
        layers = [layer for layer in self._flatten_layers() if has_lora(layer)]
        before = [layer.lora_alpha for layer in layers]
        super().load_weights(filepath, skip_mismatch, **kwargs)
        # Not always: in a callback they are what `fit` goes on with.
        if before != [layer.lora_alpha for layer in layers]:
            self._forget_functions()

    def fine_tuning_config(self):
        """What is not as in a new task, for `get_config`; empty where all is."""
        lora = {p: v for p, v in self._lora_layers().items() if has_lora(v)}
        trained = set(self._trained())
        frozen = [name for name in self._may_train() if name not in trained]
        if not (lora or frozen):
            return {}
        return {"fine_tuning": {"lora": _describe(lora), "frozen": frozen}}

    def set_fine_tuning(self, described):
        """Makes a new task as another was.

        Args:
            described: of `fine_tuning_config`, or `None` for nothing.

        Raises:
            ValueError: it is of another model.
        """
        if not described:
            return
        for options in described["lora"].values():
            _check_lora(options["rank"], options["alpha"])
        layers, frozen = self._lora_layers(), set(described["frozen"])
        unknown = set(described["lora"]) - set(layers)
        for path in set(described["lora"]) - unknown:
            options = described["lora"][path]
            layers[path].enable_lora(options["rank"], lora_alpha=options["alpha"])
        named = self.named_variables()
        unknown |= frozen - set(named)
        if unknown:
            raise ValueError(
                f"{self.name} has none of {sorted(unknown)}, which its config says to "
                "be frozen or to have LoRA."
            )
        self._train_only(set(named) - frozen)

    def _lora_layers(self):
        """The layers that have or can have adapters, by path."""
        layers = {
            id(getattr(layer, f"_{layer.adapted}")): layer
            for layer in self._flatten_layers()
            if isinstance(layer, LoRA) and layer.built  # not one that another replaced
        }
        return {
            name.rsplit("/", 1)[0]: layers[id(variable)]
            for name, variable in self.named_variables().items()
            if id(variable) in layers
        }

    def _enabled_lora(self):
        layers = {
            p: layer for p, layer in self._lora_layers().items() if has_lora(layer)
        }
        if not layers:
            raise ValueError(f"{self.name} has no LoRA. Call enable_lora() first.")
        return layers

    def _add_adapters(self, adapters, kept):
        """Enables LoRA by path to (rank, alpha); only that and `kept` train then."""
        layers, before = self._lora_layers(), set(self.named_variables())
        for path, (rank, alpha) in adapters.items():
            layers[path].enable_lora(rank, lora_alpha=alpha)
        self._train_only({*kept, *(set(self.named_variables()) - before)})

    def _may_train(self):
        """The weights by path, without what never trains, such as running means."""
        layers = self._flatten_layers()
        may = {id(v) for layer in layers for v in layer._trainable_variables}
        return {n: v for n, v in self.named_variables().items() if id(v) in may}

    def _trained(self):
        named = self._may_train().items()
        return [name for name, v in named if v.trainable and self.trainable]

    def _train_only(self, trained):
        """Makes weights and layers trainable so that all of Keras's counts agree."""
        trained = set(trained)
        for path, layer in self._lora_layers().items():
            if layer.lora_enabled:
                trained.discard(f"{path}/{layer.adapted}")
        names = {id(v): name for name, v in self._may_train().items()}
        for layer in self._flatten_layers():
            layer.trainable = True  # of what is True already TensorFlow sets no parts
        for layer in self._flatten_layers():
            own = {names[id(v)]: v for v in layer.weights if id(v) in names}
            if own and not trained & set(own):
                layer.trainable = False
                continue
            for name, variable in own.items():
                variable.trainable = name in trained
        self._start_training_anew()

    def _start_training_anew(self):
        """Forgets Keras's compiled functions, and the state of the optimizer."""
        self._forget_functions()
        optimizer = getattr(self, "optimizer", None)
        if optimizer is None or not optimizer.built:
            return
        try:
            self.optimizer = _without_state(optimizer)
        except (NotImplementedError, TypeError, ValueError) as error:
            # A class of the user's whose config is incomplete, or missing. What is
            # trained has changed already; the next fit() refuses to go on.
            self.compiled = False
            warnings.warn(
                "What is trained has changed, and no new optimizer can be made of the "
                f"config of {optimizer.name}: call compile() again before fit() or "
                f"evaluate(). {type(error).__name__}: {error}",
                stacklevel=4,
            )

    def _forget_functions(self):
        """Has Keras compile its functions again."""
        self.train_function = self.test_function = self.predict_function = None


def _without_state(optimizer):
    """A new optimizer of the same config; a rate has no state, and is the same one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a lambda, which no file gets
        config = optimizer.get_config()
    if hasattr(optimizer, "inner_optimizer"):
        del config["inner_optimizer"]
        return type(optimizer)(_without_state(optimizer.inner_optimizer), **config)
    if not isinstance(optimizer._learning_rate, keras.Variable):
        config["learning_rate"] = optimizer._learning_rate
    return type(optimizer).from_config(config)


def _check_lora(rank, alpha):
    """Raises `ValueError` where adapters cannot have these numbers."""
    check_count("rank", rank)
    if alpha is not None and not (is_number(alpha) and math.isfinite(alpha)):
        raise ValueError(
            f"alpha must be a finite number, or None for the rank. Received: {alpha!r}."
        )


def matching(patterns, paths, kind):
    """The paths that a pattern chooses, or a path above them.

    Args:
        patterns: a glob, or several.
        paths: of the model, below its name.
        kind: what the paths are of, for the error.

    Returns:
        A list, in the order of `paths`.

    Raises:
        ValueError: a pattern chooses nothing.
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in patterns:
        if not any(_chooses(pattern, path) for path in paths):
            alike = dict.fromkeys(re.sub(r"\blayer_\d+", "layer_*", p) for p in paths)
            near = difflib.get_close_matches(pattern, alike, 5, cutoff=0)
            raise ValueError(
                f"No {kind} matches a pattern. Received: {pattern!r}. Near: {near}."
            )
    return [path for path in paths if any(_chooses(p, path) for p in patterns)]


def _chooses(pattern, path):
    above = itertools.accumulate(path.split("/"), "{}/{}".format)
    return any(fnmatchcase(part, pattern) for part in above)


def _is_adapter(name):
    return name.rsplit("/", 1)[-1].startswith("lora_")


def _describe(layers):
    return {
        path: {"rank": layer.lora_rank, "alpha": layer.lora_alpha}
        for path, layer in layers.items()
    }


def _shapes(path, layer, rank):
    height, width = getattr(layer, f"_{layer.adapted}").shape
    name = f"{path}/lora_{layer.adapted}"
    return {f"{name}_a": (height, rank), f"{name}_b": (rank, width)}
