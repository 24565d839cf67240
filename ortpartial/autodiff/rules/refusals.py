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
refuse("BiasDropout", "BiasSoftmax", "BitmaskBiasDropout", "BitmaskDropout", "ComplexMul", "ComplexMulConj",
       "DecoderAttention", "DequantizeBFP", "DequantizeWithOrder", "DynamicSparseAttention",
       "GatedRelativePositionBias", "GemmFloat8", "HyperConnectionLowRankMix", "Irfft", "LongformerAttention",
       "Mamba2Verify", "MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight", "MatMulNBitsMlp",
       "MatMulNBitsQLoRA", "MatMulNBitsQkv", "MatMulPacked", "MoEPacked", "NhwcFusedConv", "QOrderedAttention",
       "QOrderedGelu", "QOrderedLayerNormalization", "QOrderedLongformerAttention", "QOrderedMatMul", "QuantizeBFP",
       "QuantizeWithOrder", "RMSNormRotary", "Rfft", "RouterGateUpProj", "SparsePagedAttention", "SwiGLU",
       "TorchEmbedding",
       reason="onnxruntime computes it on GPUs alone; build or optimize the model for the CPU")
refuse("QEmbedLayerNormalization", reason="its tables are numbers of 8 bits; quantize the model without "
                                          "EmbedLayerNormalization")
refuse("GatherPacked", "MatMulFpQ4", reason="its bytes are laid out for one machine; quantize to MatMulNBits or "
                                            "GatherBlockQuantized")
refuse("EPContext", "Snpe", reason="it holds a program of one device; train the model that it was compiled from")
refuse("ConvStateReplay", "GatedDeltaNetStateReplay", "NGramRepeatBlock", "SpeculativePrefixCommit",
       reason="it is part of a generation; train the model without it")
refuse("AdamOptimizer", "AdamWOptimizer", "AdasumAllReduce", "All", "Group", "InPlaceAccumulator",
       "InPlaceAccumulatorV2", "InplaceClipGradNorm", "IsFinite", "LambOptimizer", "MegatronF", "MegatronG",
       "MixedPrecisionScale", "NcclAllGather", "NcclAllReduce", "NcclReduceScatter", "PythonOp", "PythonOpGrad",
       "RecordEvent", "Recv", "ReduceAllL2", "SGDOptimizer", "SGDOptimizerV2", "Send", "SummaryHistogram",
       "SummaryMerge", "SummaryScalar", "SummaryText", "WaitEvent", "YieldOp",
       reason="it is part of a training by onnxruntime-training; train the model that it was made from")
refuse("UnfoldTensor", reason="it finds the times of words; train an output before it")

# Hashes, tokens, and tests of numbers; none that computes with the numbers of a quantization, such as MulInteger: an
# error names the quantization on the way, where "no gradient" would be a gradient of zero.
no_gradient("BifurcationDetector", "DynamicTimeWarping", "IsAllFinite", "MurmurHash3", "NGramHashMapping",
            "PackedSparseAttentionIndexer", "PackedSparseAttentionIndexerMerge", "SparseAttentionIndexer", "Tokenizer",
            "VarlenNGramHashMapping", domain="com.microsoft")
