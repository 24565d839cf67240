"""Loading models: a file, bytes or a ModelProto becomes checked and upgraded values; and writing them."""

from .adapter_record import Adapter, Target, is_base, note_adapter, read_adapter
from .aliases import Alias, AliasDict, find_aliases, is_generated_name
from .atomic import replace_file, write_files
from .auto_pad import is_misread
from .computed_inputs import ComputedInputs, find_computed_inputs, is_cache
from .custom_ops import ONNX_DOMAINS, find_libraries, register_libraries, resolve_libraries
from .declaration import declare, declare_schema
from .display import draw_card, format_bytes, format_flops
from .exported_program import list_program_constants
from .external_data import change_weights, offload_weights, replace_weights, restore_weights, split_external_data
from .folding import evaluate
from .function_bodies import expand_body
from .index_ranges import Range, check_empty, check_indices, find_indices, index_ranges
from .load import Model, ModelLike, load, read, register_upgrade_check, use_libraries
from .ml import ML_OPERATORS, compute_ml, expand_ml, list_preprocessing, read_ml_weights
from .names import match_names
from .prepare import is_misplaced, prepare
from .prune import prune_outputs
from .quantized_operators import by_row, dequantize
from .reader import register_expansion
from .regular_file import open_regular, read_regular
from .run_time_guards import BOUNDED, guard_bound
from .safetensors import read_tensors, write_tensors
from .scopes import read_scope
from .specialize import specialize
from .straight_through import QUANTIZERS, can_pass_straight_through, is_quantized, mark_straight_through, to_real
from .suffixes import check_suffix
from .ties import Ties, infer_ties, list_folded_norms
from .torch_record import TorchRecord, note_torch, read_torch
from .tree import Leaf, count_modules, draw_tree, place_initializers
from .unused import remove_named, remove_unread, remove_unused, replace_messages
from .validation import LARGEST_INT32, available_memory
from .walk import bodies, walk_graphs
from .write import check_finite, write, write_folder

__all__ = ["BOUNDED", "LARGEST_INT32", "ML_OPERATORS", "ONNX_DOMAINS", "QUANTIZERS", "Adapter", "Alias", "AliasDict",
           "ComputedInputs", "Leaf", "Model", "ModelLike", "Range", "Target", "Ties", "TorchRecord", "available_memory",
           "bodies", "by_row", "can_pass_straight_through", "change_weights", "check_empty", "check_finite",
           "check_indices", "check_suffix", "compute_ml", "count_modules", "declare", "declare_schema", "dequantize",
           "draw_card", "draw_tree", "evaluate", "expand_body", "expand_ml", "find_aliases", "find_computed_inputs",
           "find_indices", "find_libraries", "format_bytes", "format_flops", "guard_bound", "index_ranges",
           "infer_ties", "is_base", "is_cache", "is_generated_name", "is_misplaced", "is_misread", "is_quantized",
           "list_folded_norms", "list_preprocessing", "list_program_constants", "load", "mark_straight_through",
           "match_names", "note_adapter", "note_torch", "offload_weights", "open_regular", "place_initializers",
           "prepare", "prune_outputs", "read", "read_adapter", "read_ml_weights", "read_regular", "read_scope",
           "read_tensors", "read_torch", "register_expansion", "register_libraries", "register_upgrade_check",
           "remove_named", "remove_unread", "remove_unused", "replace_file", "replace_messages", "replace_weights",
           "resolve_libraries", "restore_weights", "specialize", "split_external_data", "to_real", "use_libraries",
           "walk_graphs", "write", "write_files", "write_folder", "write_tensors"]
