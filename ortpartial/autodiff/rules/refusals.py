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
refuse("AdamOptimizer", "AdamWOptimizer", "AdasumAllReduce", "All", "BatchNormalizationGrad", "BatchScale",
       "BiasFastGeluGrad_dX", "BiasGeluGrad_dX", "BiasSoftmaxDropout", "BitmaskDropoutGrad", "BroadcastGradientArgs",
       "ConcatTraining", "ConvGrad", "ConvTransposeGrad", "DivGrad", "DropoutGrad", "FakeQuant", "FakeQuantGrad",
       "FastGeluGrad", "FlattenAndUnpad", "GRUGrad", "GRUTraining", "GatherElementsGrad", "GatherGrad", "GatherNDGrad",
       "GeluGrad", "GistBinarizeDecoder", "GistBinarizeEncoder", "GistPack16Decoder", "GistPack16Encoder",
       "GistPack1Decoder", "GistPack1Encoder", "GistPack8Decoder", "GistPack8Encoder", "GistPackMsfp15Decoder",
       "GistPackMsfp15Encoder", "Group", "InPlaceAccumulator", "InPlaceAccumulatorV2", "InplaceClipGradNorm",
       "InvertibleLayerNormalizationGrad", "IsFinite", "LSTMGrad", "LSTMTraining", "LambOptimizer",
       "LayerNormalizationGrad", "LeakyReluGrad", "LogSoftmaxGrad", "LogSoftmaxGrad_13", "MegatronF", "MegatronG",
       "MixedPrecisionScale", "NcclAllGather", "NcclAllReduce", "NcclReduceScatter",
       "NegativeLogLikelihoodLossInternal", "NegativeLogLikelihoodLossInternal2", "PadAndUnflatten", "PassThrough",
       "PythonOp", "PythonOpGrad", "QuickGeluGrad", "RecordEvent", "Recv", "ReduceAllL2", "ReduceSumTraining",
       "ResizeGrad", "SGDOptimizer", "SGDOptimizerV2", "Scale", "ScaledSum", "Send", "ShrunkenGather", "SigmoidGrad",
       "SimplifiedLayerNormalizationGrad", "SliceGrad", "SoftmaxCrossEntropy", "SoftmaxCrossEntropyGrad",
       "SoftmaxCrossEntropyLossGrad", "SoftmaxCrossEntropyLossInternal", "SoftmaxCrossEntropyLossInternalGrad",
       "SoftmaxDropoutGrad", "SplitTraining", "SummaryHistogram", "SummaryMerge", "SummaryScalar", "SummaryText",
       "TanhGrad", "WaitEvent", "YieldOp", "ZeroGradient",
       reason="it is part of a training by onnxruntime-training; train the model that it was made from")
refuse("MatMulInteger16", "MulInteger", "NhwcMaxPool", "QLinearConv", "ReduceSumInteger",
       reason="it computes with the whole numbers of a quantization; train the model before it is quantized, or "
              "quantize it in the QDQ format")
refuse("AttnLSTM", "MaxpoolWithMask", "SparseToDenseMatMul", "WordConvEmbedding",
       reason="onnxruntime alone has it, for models that no tool of today writes; write it in operators of ONNX")
refuse("MoEGroupRouter", reason="it has projection_weight; write its product as a MatMul in front of it")
refuse("ConvTransposeWithDynamicPads", reason="its pads are computed; make them an initializer")
refuse("CropAndResize", reason="it takes the nearest element, or crops of a size that is computed; make crop_size an "
                               "initializer, and mode bilinear")
refuse("UnfoldTensor", reason="it finds the times of words; train an output before it")

# Hashes, tokens, and tests of numbers; none that computes with the numbers of a quantization, such as MulInteger: an
# error names the quantization on the way, where "no gradient" would be a gradient of zero.
no_gradient("BifurcationDetector", "DynamicTimeWarping", "IsAllFinite", "MurmurHash3", "NGramHashMapping",
            "PackedSparseAttentionIndexer", "PackedSparseAttentionIndexerMerge", "SparseAttentionIndexer", "Tokenizer",
            "VarlenNGramHashMapping", domain="com.microsoft")
