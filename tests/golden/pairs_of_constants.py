"""Pairs of irrational values: the same by an identity, or different in a digit far behind the point.

One pair a line, `gold ## answer`; a line with # in front is the reason for the pairs below it.
"""

SAME = r"""
# constants are equal where algebra proves it, and different where enclosures exclude each other, however close
0 ## \sin\pi
\sqrt{3+2\sqrt2} ## 1+\sqrt2
\sqrt[3]{2+\sqrt5}+\sqrt[3]{2-\sqrt5} ## 1
\log_2 8 ## 3
\ln e^5 ## 5
\ln 6 ## \ln 2+\ln 3
\ln 12 ## 2\ln 2+\ln 3
\log_4 8 ## \frac32
\log 2 + \log 5 ## 1
\log_{10} 20 ## 1+\log_{10} 2
\cos\frac{\pi}{5} ## \frac{1+\sqrt5}{4}
\sin 18^\circ ## \frac{\sqrt5-1}{4}
\cos\frac{2\pi}{7}+\cos\frac{4\pi}{7}+\cos\frac{6\pi}{7} ## -\frac12
\tan 15^\circ ## 2-\sqrt3
\arctan\frac12+\arctan\frac13 ## \frac{\pi}{4}
4\arctan\frac15-\arctan\frac1{239} ## \frac{\pi}{4}
\arctan 1+\arctan 2+\arctan 3 ## \pi
\arcsin\frac12 ## \frac{\pi}{6}
\arccos\frac{\sqrt3}{2} ## \frac{\pi}{6}
\arctan\sqrt3 ## \frac{\pi}{3}
\arccos(-\frac12) ## \frac{2\pi}{3}
\arcsin\frac13+\arccos\frac13 ## \frac{\pi}{2}
\sqrt{50} ## 5\sqrt2
\frac{1}{\sqrt2} ## \frac{\sqrt2}{2}
\frac{\sqrt6+\sqrt2}{4} ## \cos 15^\circ
\sqrt{2}\sqrt{3} ## \sqrt6
\pi+e ## e+\pi
(\pi+1)^2 ## \pi^2+2\pi+1
e^{2}\cdot e^{3} ## e^5
e^{i\pi} ## -1
e^{i\pi/3} ## \frac12+\frac{\sqrt3}{2}i
\sin^2 1+\cos^2 1 ## 1
\sinh 1 ## \frac{e-e^{-1}}{2}
e^{\ln 3} ## 3
2^{\log_2 3} ## 3
3^{\log_9 4} ## 2
\sqrt{e} ## e^{1/2}
|\sqrt2-2| ## 2-\sqrt2
|3+4i| ## 5
(1+i)^8 ## 16
\sqrt{-4} ## 2i
\sqrt[3]{-8} ## -2
(-8)^{1/3} ## -2
\lfloor\log_2 8\rfloor ## 3
\lfloor 10\sqrt2\rfloor ## 14
\ln(1+\sqrt2) ## -\ln(\sqrt2-1)
\ln(3+2\sqrt2) ## 2\ln(1+\sqrt2)
\ln\sqrt2 ## \frac12\ln2
\ln\frac{1}{2} ## -\ln 2
\frac{\ln 8}{\ln 2} ## 3
\log_3 4 \cdot \log_4 9 ## 2
2\sqrt{\pi} ## \sqrt{4\pi}
\frac{\pi}{\sqrt\pi} ## \sqrt\pi
\sqrt{\pi^2} ## \pi
\sqrt[3]{e^6} ## e^2
100\pi ## \pi\cdot 10^2
\sqrt2+\sqrt3 ## \sqrt{5+2\sqrt6}
\frac{1}{\sqrt[3]{4}+\sqrt[3]{2}+1} ## \sqrt[3]{2}-1
\sqrt[3]{\sqrt[3]{2}-1} ## \sqrt[3]{\frac19}-\sqrt[3]{\frac29}+\sqrt[3]{\frac49}
\sqrt{2+\sqrt{2+\sqrt{2}}} ## 2\cos\frac{\pi}{16}
\sin\frac{\pi}{10}\sin\frac{3\pi}{10} ## \frac14
\tan\frac{\pi}{8} ## \sqrt2-1
\cot 30^\circ ## \sqrt3
\sec 60^\circ ## 2
\cos 36^\circ-\cos 72^\circ ## \frac12
\frac{3\pi}{4} ## 135^\circ
\sin 2 ## 2\sin1\cos1
\cos 2 ## 1-2\sin^2 1
\tan(\arctan 2) ## 2
\sin(\arccos\frac35) ## \frac45
\cos(2\arctan\frac12) ## \frac35
2^{\sqrt2}\cdot2^{\sqrt2} ## 4^{\sqrt2}
(\sqrt2^{\sqrt2})^{\sqrt2} ## 2
\pi^{2}\cdot\pi ## \pi^3
\ln\pi^2 ## 2\ln\pi
e^{1+\ln 2} ## 2e
\frac{e^2-1}{e-1} ## e+1
\frac{\pi^2}{6} ## \frac{1}{6}\pi^2
(\frac12)! ## \frac{\sqrt\pi}{2}
\cos 20^\circ\cos40^\circ\cos80^\circ ## \frac18
8\sin20^\circ\sin40^\circ\sin80^\circ ## \sqrt3
\cos\frac{\pi}{17} ## \sin\frac{15\pi}{34}
5\cos(\arctan\frac43) ## 3
# logarithms, arcs and powers in other forms
i^i ## e^{-\pi/2}
\ln(-1) ## i\pi
\sqrt{(1-\sqrt2)^2} ## \sqrt2-1
\sqrt[4]{17+12\sqrt2} ## 1+\sqrt2
\log_{\sqrt2} 8 ## 6
\log_{1/2} 8 ## -3
\ln\frac{e}{2} ## 1-\ln2
e^{2\ln3} ## 9
e^{-\ln 2} ## \frac12
10^{\log 5} ## 5
\sinh(\ln 2) ## \frac34
\arctan(-1) ## -\frac{\pi}{4}
\arctan(2+\sqrt3) ## \frac{5\pi}{12}
2\arctan\frac13+\arctan\frac17 ## \frac{\pi}{4}
\arcsin\frac35+\arccos\frac35 ## \frac{\pi}{2}
\arcsin\frac35+\arcsin\frac45 ## \frac{\pi}{2}
\arcsin\frac35 ## \arctan\frac34
\arccos\frac13 ## \arctan(2\sqrt2)
\arctan\sqrt2+\arctan\frac{1}{\sqrt2} ## \frac{\pi}{2}
\arctan\sqrt2+\arctan\frac{\sqrt2}{2} ## \frac{\pi}{2}
\pi-\arccos\frac14 ## \arccos(-\frac14)
2\arcsin\frac13 ## \arccos\frac79
\frac{\pi}{2}-\arctan\frac12 ## \arctan 2
\arcsin\frac{\sqrt2}{2} ## 45^\circ
\cos(\arcsin\frac13) ## \frac{2\sqrt2}{3}
\sin(2\arcsin\frac35) ## \frac{24}{25}
\tan(2\arctan\frac15) ## \frac{5}{12}
\log_2 3\cdot\log_3 2 ## 1
\log_2 12-\log_2 3 ## 2
\frac{1}{\log_2 6}+\frac{1}{\log_3 6} ## 1
\ln 1 ## 0
\ln 0.5 ## -\ln 2
\ln(\sqrt3+2)+\ln(2-\sqrt3) ## 0
\log_9 27 ## 1.5
\log_5 \sqrt5 ## \frac12
\sqrt{6+\sqrt{20}} ## 1+\sqrt5
\sqrt{5}^{\,4} ## 25
\frac{\sqrt3+i}{2} ## e^{i\pi/6}
\left(\frac{1+i}{\sqrt2}\right)^{8} ## 1
\cos\frac{\pi}{12} ## \frac{\sqrt{2+\sqrt3}}{2}
\sqrt[3]{7+5\sqrt2} ## 1+\sqrt2
3^{1/2}\cdot 3^{1/2} ## 3
2^{2/3}\cdot2^{1/3} ## 2
4^{0.75} ## 2\sqrt2
\sqrt{\frac{1-\cos 40^\circ}{2}} ## \sin 20^\circ
\pi^{0} ## 1
\left(\sqrt{\pi}\right)^2 ## \pi
\frac{e^{3}}{e} ## e^2
\ln(e\sqrt e) ## \frac32
\sin\left(\frac{\pi}{2}+1\right) ## \cos 1
\sin(\pi-2) ## \sin 2
\sin^2 15^\circ ## \frac{2-\sqrt3}{4}
\frac{\sin 2}{\cos 2} ## \tan 2
1+\tan^2 1 ## \sec^2 1
\cosh^2 1-\sinh^2 1 ## 1
\max(\sqrt2,\frac32) ## \frac32
e^{\frac12\ln 9} ## 3
e^{i\pi/2} ## i
# expressions in names are compared beyond the usual digits too
2^{n+1}-2 ## 2(2^n-1)
\frac{x^2-1}{x-1} ## x+1
e^{2x} ## (e^x)^2
(x+1)^{10} ## (1+x)^{10}
f(x)+1 ## 1+f(x)
\sin 2x ## 2\sin x\cos x
\lfloor x\rfloor+1 ## \lfloor x+1\rfloor
# a power behind the brackets of a function is a power of its value
\cos(1)^2 ## \cos^2 1
e^{\cos(1)^2} ## e^{\cos^2 1}
2^{\sin(x)^2} ## 2^{\sin^2 x}
\cos(x)^2+\sin(x)^2 ## 1
\sin(x)^2 ## \left(\sin x\right)^2
\ln(x)^2 ## (\ln x)^2
\sin\left(x\right)^2 ## \sin^2 x
3\sin(x)^2\cos(x) ## 3\cos x\sin^2 x
\sin(x)^{-1} ## \frac{1}{\sin x}
\log_2(8)^2 ## 9
\sqrt{1-\cos(\theta)^2} ## \sqrt{1-\cos^2\theta}
"""

DIFFERENT = r"""
# constants are equal where algebra proves it, and different where enclosures exclude each other, however close
2^{1010}\sqrt3 - 1 ## 2^{1010}\sqrt3
e^{1000}-1 ## e^{1000}+1
42 + e^{-300} ## 42
\frac{1}{2^{2020}} ## \sin\pi
\sqrt{3+2\sqrt2} ## 1+\sqrt3
\ln 12 ## 2\ln 2+\ln 5
\pi ## \frac{22}{7}
\pi ## \frac{355}{113}
e^{\pi\sqrt{163}} ## 262537412640768744
\sqrt{10^{100}+1} ## 10^{50}
\sqrt{10^{400}+1} ## 10^{200}
1+10^{-400}\sqrt2 ## 1
\sqrt2+\sqrt3 ## \sqrt{5+2\sqrt6}+10^{-200}
\tan\frac{\pi}{2} ## 10^{60}
\sin(10^{10}) ## \sin(10^{10}+2\pi\cdot10^{-100})
e^{e^{7}}+1 ## e^{e^{7}}
2^{\sqrt2} ## 2^{\sqrt2}+10^{-500}
# logarithms, arcs and powers in other forms
\ln(\sin\pi) ## 0
\arccos\frac13 ## \arctan(2\sqrt3)
\arcsin\frac35+\arcsin\frac45 ## \frac{\pi}{2}+10^{-90}
\sqrt[3]{7+5\sqrt2} ## 1+\sqrt2+10^{-70}
# expressions in names are compared beyond the usual digits too
x+2^{-1000} ## x
x+e^{-300} ## x
x\left(1+10^{-200}\right) ## x
x+\frac{1}{2004!} ## x+\frac{1}{2006!}
\sqrt{x^2+10^{-400}} ## x
x^{1000}+1 ## x^{1000}
\sin(x+10^{-150}) ## \sin x
# a power behind the brackets of a function is a power of its value
\sin(x)^2 ## \sin(x^2)
\ln(x)^2 ## 2\ln x
\sin(x)^{-1} ## \arcsin x
"""
