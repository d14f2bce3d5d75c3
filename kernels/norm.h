/* norm.h - how the sum of an array's squares is divided: see cpu/norm.h. */
#ifndef DCOMMI_NORM_H
#define DCOMMI_NORM_H

#define DCOMMI_NORM_LANES 32u /* lanes of a row */
#define DCOMMI_NORM_ROW 1024u /* elements */
#define DCOMMI_NORM_ROWS 8u   /* rows of a tile */

#endif
