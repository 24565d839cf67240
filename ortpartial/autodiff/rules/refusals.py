"""Operators of com.microsoft that have no rule, and why."""

from functools import partial

from ..registry import no_gradient, refuse_gradient

refuse = partial(refuse_gradient, domain="com.microsoft")

refuse("SparseAttention", reason="which blocks of keys a query sees follows from tables of the file, and onnxruntime "
                                 "alone reads them; export the model with attention to all keys")
refuse("DecoderMaskedMultiHeadAttention", "DecoderMaskedSelfAttention",
       reason="it computes one token of a generation; train the model that it was converted from")
refuse("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch",
       reason="it chooses tokens; train the decoder inside of it as a model of its own")
refuse("PackedAttention", "PackedMultiHeadAttention", "PagedAttention", "RemovePadding", "RestorePadding",
       "VarlenCausalConvWithState",
       reason="its rows are packed one behind the other, for a server on GPUs; build the model for the CPU")
refuse("GatedRelativePositionBias", "MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight",
       "QOrderedAttention", "QOrderedGelu", "QOrderedLayerNormalization", "QOrderedMatMul",
       reason="onnxruntime computes it on GPUs alone; build or optimize the model for the CPU")
refuse("MatMulBnb4", reason="its numbers of 4 bits stand for no linear scale; quantize to MatMulNBits, as "
                            "onnxruntime.quantization.matmul_nbits_quantizer does")
refuse("QEmbedLayerNormalization", reason="its tables are numbers of 8 bits; quantize the model without "
                                          "EmbedLayerNormalization")
refuse("UnfoldTensor", reason="it finds the times of words; train an output before it")

no_gradient("DynamicTimeWarping", domain="com.microsoft")
