"""Pairs of answers with decimal commas, several units, dates and times of day.

One pair a line, `gold ## answer`; a line with # in front is the reason for the pairs below it.
"""

SAME = r"""
# square and cubic units without a name
5 square units ## 5
12 sq units ## 12 square units
5\text{ units}^2 ## 5
# a decimal comma, a point at the start, spaces and points between thousands
3.5 ## 3{,}5
3{,}5 ## \frac72
2.75 ## 2{,}75
0{,}125 ## \frac18
1{,}234 ## 1234
1{,}234{,}567 ## 1234567
3{,}1416 ## 3.1416
12{,}5\% ## 12.5\%
3.7 ## 3,7
3,7 ## 3, 7
3,7 ## 7, 3
(3,7) ## (3, 7)
0,25 ## \frac14
-2,5 ## -2.5
2,5\text{ cm} ## 2.5
2,5 cm ## 2.5 cm
x = 2,5 ## 2.5
12,34 ## 12.34
3,14159 ## 3.14159
1,234 ## 1234
0,234 ## 0.234
1.234,56 ## 1234.56
1.234.567 ## 1234567
1.234.567,89 ## 1234567.89
1,234.56 ## 1234.56
12,5 € ## 12.5
7,5\% ## 7.5\%
.4 ## 0.4
.4 ## \frac25
-.4 ## -0.4
x=.5 ## \frac12
(.5, .25) ## (\frac12,\frac14)
\frac{.5}{2} ## 0.25
1 000 ## 1000
1 000 000 ## 1000000
1\,000\,000 ## 1000000
1~000 ## 1000
12 345.67 ## 12345.67
12 345,67 ## 12345.67
-1 000 ## -1000
\$1 000 ## 1000
1 000\text{ km} ## 1000
1 000 km ## 1000 km
1'000 ## 1000
1 000 005 ## 1000005
# several units of one quantity, and a length in feet and inches
2 h 15 min ## 2\text{ h }15\text{ min}
2 h 15 min ## 2 hours 15 minutes
2 h 15 min ## 135 min
2 h 15 min ## 135\text{ minutes}
2 h 15 min ## 2.25 hours
2h 15min ## 2 hours and 15 minutes
2h15m ## 2 hours 15 minutes
2 hr 15 min ## 2 hours, 15 minutes
2 days 3 hours ## 51 hours
1 hour 30 minutes ## 1.5 hours
1 hour 30 minutes ## 90 minutes
5'4" ## 5 feet 4 inches
5'4" ## 5 ft 4 in
5'4" ## 64 inches
5'4" ## 64\text{ in}
5'4" ## 5' 4"
5'4'' ## 5 feet 4 inches
5′4″ ## 5 feet 4 inches
6 ft 2 in ## 74 inches
3 m 20 cm ## 320 cm
3 m 20 cm ## 3.2 m
1 kg 500 g ## 1.5 kg
3 kg 250 g ## 3250 g
4 lb 8 oz ## 72 oz
4 pounds 8 ounces ## 4.5 pounds
\$3 and 50 cents ## \$3.50
3 dollars and 50 cents ## \$3.50
1 min 30 s ## 90 seconds
1\text{ h } 40\text{ min} ## 100\text{ min}
10^\circ 30' ## 10.5^\circ
# dates in either order, and times of day
March 21 ## 21 March
March 21 ## March 21st
March 21 ## 21st March
March 21 ## 21st of March
March 21 ## the 21st of March
March 21 ## \text{March 21}
March 21 ## Mar 21
March 21 ## Mar. 21
\text{March 21} ## 21 March
July 4, 1776 ## 4 July 1776
July 4, 1776 ## July 4th, 1776
May 5 ## 5 May
\text{Tuesday, March 21} ## Tuesday, March 21
15:30 ## 3:30 p.m.
15:30 ## 3:30 PM
15:30 ## 15:30 hours
15:30\text{ Uhr} ## 15:30
3:30 p.m. ## 3:30pm
3:30 p.m. ## 15:30
12:00 ## 12:00 p.m.
12:00 ## noon
12:00 a.m. ## midnight
00:00 ## 12:00 a.m.
9:05 ## 09:05
3 pm ## 15:00
3 p.m. ## 3:00 PM
# factors and denials in other languages are no counted nouns
50000 ## 5万
5000000 ## 5 millions
5000000 ## 5 million
5 ## 5 Äpfel
5 ## 5 лет
5 ## 5 яблок
5\text{ m} ## 5米
5\text{ cm} ## 5厘米
500\text{ cm} ## 5米
30 ## 30度
2\text{ hours} ## 2小时
12\text{ 元} ## 12
12 ## 12 元
12\text{ 元} ## 12\text{ yuan}
5 ## 5个
5 ## 5 人
5\text{ kg} ## 5千克
5 ## 5 m²
5\text{ m}^2 ## 5 m²
qvB ## Bqv
Tom ## tom
20\% ## 20 Prozent
12 ## 12 Euro
12\text{ euros} ## 12 Euro
# decimal commas and roundings in other dress
4.5 ## 4{,}5
\frac92 ## 4{,}5
4.5 ## 4,5
\frac92 ## 4,5
4{,}5 ## 4.5
2.75 ## 2,75
0.25 ## 0,25
\frac14 ## 0{,}25
-0.5 ## -0{,}5
3.5\% ## 3{,}5\%
(1.5, 2) ## (1{,}5; 2)
1{,}000 ## 1000
10{,}000 ## 10000
\$1{,}500 ## 1500
1{,}500{,}000 ## 1500000
0,5 ## \frac12
1,5 \cdot 10^3 ## 1500
5 cm ## 5,0 cm
# dates and mixed units as sentences say them
15 August ## August 15
15 August ## 15th August
15 August ## August 15th
15 August ## the 15th of August
August 15 ## 15. August
July 4, 1776 ## July 4 1776
July 4, 1776 ## 4th of July, 1776
July 4, 1776 ## the 4th of July 1776
January 1, 2000 ## Jan 1, 2000
\text{March }21 ## March 21
5'4" ## 5 ft 4 in
5'4" ## 5 ft 4 in.
5'4" ## 5 feet and 4 inches
5'4" ## 5\text{ ft }4\text{ in}
5'4" ## 64 in
5'10" ## 70 inches
5'10'' ## 5 feet 10 inches
2\text{ h }15\text{ min} ## 2h 15m
2 hours 30 minutes ## 2.5 hours
2 hours 30 minutes ## 2\frac12 hours
2 hours 30 minutes ## 2 hrs 30 mins
1 h 1 min 1 s ## 3661 s
3 weeks 2 days ## 23 days
1 year 6 months ## 18 months
2 yards 1 foot ## 7 feet
1 gallon 2 quarts ## 6 quarts
7 pounds 8 ounces ## 7.5 lb
6 feet ## 2 yards
# upright symbols of units, whose case and prefix matter
12 ## 12\text{ T}
12 ## 12\text{ F}
12 ## 12\text{ kV}
12 ## 12\text{ mA}
12 ## 12\text{ pF}
12 ## 12\,\mu\text{F}
12 ## 12\text{ dB}
12 ## 12\text{ hp}
12 ## 12\text{ Jy}
12 ## 12\text{ GB}
12 ## 12 GB
12 ## 12 kWh
12 ## 12\text{ qt}
12 ## 12\text{ mo}
12 ## 12\text{ wk}
12 ## 12\text{ dL}
156 ## 156kgs
0.5\text{ mT} ## 0.0005\text{ T}
0.0073125 \mathrm{~T} ## 0.0073125 T
12\mathrm{~T} ## 12\text{ teslas}
12\mathrm{~MV} ## 12000\text{ kV}
12\mathrm{~mW} ## 0.012\text{ W}
12\text{ kW} ## 12\text{ KW}
25^\circ C ## 25 degrees Celsius
25^\circ\text{F} ## 25\text{ degrees F}
# counted nouns of three letters
10 ## 10 men
10 ## 25 - 15 = 10 men
10 ## 10 red men
10 ## 10 TVs
1 ## 24/24 = 1 box
10\text{ men} ## 10 men
6 eggs ## 6\text{ eggs}
2 car ## 2rac
"""

DIFFERENT = r"""
# square and cubic units without a name
5 square units ## 5 cubic units
5 units^2 ## 5 units^3
5 square units ## 6 square units
# a ratio that reads as a time
3:5 ## 5:30
2:3 ## 10:30
7:30 ## 7:45
# a decimal comma, a point at the start, spaces and points between thousands
3{,}5 ## 35
3{,}5 ## 5.3
2.75 ## 275
1{,}234 ## 1.234
3,7 ## 37
3,7 ## 3
3,7 ## 7
3,7 ## 7.3
3,7 ## 3.07
3, 7 ## 3.7
(3,7) ## 3.7
\{3,7\} ## 3.7
[3,7] ## 3.7
0,25 ## 25
-2,5 ## 2.5
2,5 cm ## 25 cm
12,34 ## 1234
1,234 ## 1.234
0,234 ## 234
1.234,56 ## 1.23456
1.234.567 ## 1.234567
1,2,3 ## 1.23
1,2,3 ## 1.2
1,2 ## 12
.4 ## 4
-.4 ## -4
1 000 ## 1
1 000 ## 0
1 000 ## 10000
1 00 ## 100
10 00 ## 1000
1 0000 ## 10000
1 000 005 ## 5
# several units of one quantity, and a length in feet and inches
2 h 15 min ## 2 h 51 min
2 h 15 min ## 2 h
2 h 15 min ## 15 min
2 h 15 min ## 215
2 h 15 min ## 2 min 15 s
2 h 15 min ## 17
5'4" ## 4'5"
5'4" ## 5.4 feet
5'4" ## 54
5'4" ## 5'
3 m 20 cm ## 3.02 m
3 kg 250 g ## 3.025 kg
3 dollars and 50 cents ## \$3.05
# dates in either order, and times of day
March 21 ## 21 May
March 21 ## 12 March
March 21 ## March 2
March 21 ## March
March 21 ## 21
July 4, 1776 ## July 4, 1777
July 4, 1776 ## July 4
July 4, 1776 ## 5 July 1776
March 21 ## March 21, 2020
15:30 ## 3:30 a.m.
15:30 ## 15.30
3:30 p.m. ## 15:33
00:00 ## 12:00 p.m.
9:05 ## 9:50
# factors and denials in other languages are no counted nouns
5 ## 5 Millionen
5 ## 5 millions
5 ## 5 tausend
5 ## 5 Tausend
5 ## 5 hundert
5 ## 5 mille
5 ## 5 cientos
5 ## 5 mil
5 ## 5 millones
5 ## 5万
5 ## 5万元
5 ## 5千
5 ## 5百
5 ## 5 тысяч
5 ## 5 миллионов
5 ## 5 nicht
5 ## 5 oder
5 ## 5不是
5 ## 5 не
5 ## 5 лет назад нет
5\text{ cm} ## 5米
12\text{ 元} ## \$12
5 ## 6个
5 ## 5半
5 ## 5倍
5 ## 5分之一
5\text{ m} ## 5 m²
Tom ## Mot
5 ## 5 Prozent mehr als
# decimal commas and roundings in other dress
4.5 ## 45
(1,5) ## 1.5
1{,}000 ## 1
1{,}5 ## 15
0,5 ## 5
12,5 ## 125
# dates and mixed units as sentences say them
August 15 ## August 16
January 1, 2000 ## June 1, 2000
5'10" ## 5.10 feet
2 hours 30 minutes ## 2.3 hours
2 hours 30 minutes ## 230 minutes
# another symbol, another prefix, and what is no symbol of a unit or may be a large number
12 ## 12\text{ B}
12 ## 12\text{ qq}
12 ## 12\text{ no}
12 ## 12\text{ dB higher than }5
12 ## 13\text{ T}
12 ## 12pF
12 ## 12 pF
12 ## 12mA
12 ## 12 hp
12 ## 12TB
12 ## 2pt
12\text{ mW} ## 12\text{ MW}
12 mV ## 12 MV
12\text{ mHz} ## 12\text{ MHz}
12\text{ T} ## 12\text{ F}
12\text{ T} ## 12\text{ V}
12\text{ mT} ## 12\text{ T}
12\text{ pF} ## 12\text{ nF}
12\text{ GB} ## 12\text{ MB}
12\text{ F} ## 12\text{ fs}
3\text{ pm} ## 3\text{ am}
25^\circ C ## 25\text{ degrees F}
25\text{ degrees} ## 25^\circ F
25\text{ degrees wrong} ## 25
10 ## 12 men
10 ## 10men
10 ## 10 nem
10 ## 10 axe
10 ## 10x men
10 ## 10 not men
10 ## 10 men or 5
10 ## 10 no men
10 ## 10 ant^2 x
10 men ## 10\text{ women}
10\text{ men} ## 10\text{ boxes}
2 men ## 2 dozen men
"""
