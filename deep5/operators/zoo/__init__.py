"""C++ operators that ship with deep5: convolution by four algorithms, a product, a recurrent layer, the CTC loss."""

from deep5.operators.zoo.convolution import ConvDirect, ConvFFT, ConvIm2Col, ConvWinograd
from deep5.operators.zoo.ctc import CTCLoss
from deep5.operators.zoo.product import MatMulBlocked
from deep5.operators.zoo.recurrent import RecurrentPersistent

__all__ = ["CTCLoss", "ConvDirect", "ConvFFT", "ConvIm2Col", "ConvWinograd", "MatMulBlocked", "RecurrentPersistent"]
